"""Regressors fitted to rated records."""

"""Minimum Bayes risk decoding and reranking with any metric."""

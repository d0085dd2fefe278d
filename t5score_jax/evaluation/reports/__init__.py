"""Reports: tables, plots and the papers' tables."""

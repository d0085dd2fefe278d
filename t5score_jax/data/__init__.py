"""Text on its way in and out: files, records, vocabularies, features."""

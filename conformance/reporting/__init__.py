"""What came out: reports, tables, provenance."""

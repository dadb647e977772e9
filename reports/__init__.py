"""Nightly and weekly reports over a store of bundles. Reads `harness.results`, raises `harness.errors`, knows no more."""

"""Nightly and weekly reports over a store of bundles. Reads `harness.results` alone, and raises `harness.errors`."""

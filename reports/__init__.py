"""Reports over a store of bundles: nightly and weekly. Reads `harness.results` and nothing else of the harness."""

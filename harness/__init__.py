"""The harness: matrices of cells, the cases that run in them, and the records they leave."""

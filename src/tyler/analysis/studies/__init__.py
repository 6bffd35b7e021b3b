"""Which cells a study has: one module a study."""

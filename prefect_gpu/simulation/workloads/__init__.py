"""The papers' test-beds and job mixes, one module each: ``compare(quick)`` runs them and gives comparisons."""

"""How many defects the tests see: single ones are planted, and tests run until one fails."""

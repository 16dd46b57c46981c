"""ML Programs, read and run on any machine; imports nothing else of the product."""

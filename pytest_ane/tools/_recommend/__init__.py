"""The smallest compression that passes every gate: a search in which only measurements count."""

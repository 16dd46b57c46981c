"""Why a model is red or slow: drift, blame, bisect, diff, bound."""

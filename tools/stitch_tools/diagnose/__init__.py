"""From a profile to the one change that pays most: taxes, bounds, rules, predictions."""

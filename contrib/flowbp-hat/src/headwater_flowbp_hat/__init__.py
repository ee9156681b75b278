"""FlowBP with every step kept: the inactive ones are interpolated onto the active ones."""

"""DDIM's eta on a flow: steps whose noise is a fraction of what the ancestral sampler adds."""

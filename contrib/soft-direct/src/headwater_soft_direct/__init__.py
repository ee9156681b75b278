"""Direct reward gradients through a smooth hinge; of several rewards the worst comes first."""

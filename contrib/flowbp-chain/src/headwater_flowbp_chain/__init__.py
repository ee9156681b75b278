"""Full backpropagation's gradient through a chain of random leaps."""

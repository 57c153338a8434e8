"""Run a step and watch its memory: plan or request -> AllocationTrace. The only room that imports torch."""

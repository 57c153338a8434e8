"""Work on records: replay through an allocator, who read what, what fits. No torch."""

"""What the documentation site is made of beside its pages: pictures, notebooks, hooks."""

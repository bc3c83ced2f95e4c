"""Programs of others, read into graphs; each module needs the library whose programs it reads."""

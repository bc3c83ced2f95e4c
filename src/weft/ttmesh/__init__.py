"""The mesh-buffer target: arrays on a mesh of chips. Extra `ttmesh`."""

"""Resharding: the steps that take an array from one sharding to another."""

"""The library: what `import nextn` offers."""

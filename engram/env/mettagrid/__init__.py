"""mettagrid worlds as environments."""

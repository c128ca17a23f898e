"""Our tests. As a package they are found before those that others install, as gmqtt does."""

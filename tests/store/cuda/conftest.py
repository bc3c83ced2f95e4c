from tests.store.cuda.host import host  # noqa: F401  a fixture

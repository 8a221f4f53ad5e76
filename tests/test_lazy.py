from keras_vit.lazy import discovered


def test_the_public_modules_of_a_package_are_discovered_in_order(tmp_path, monkeypatch):
    package = tmp_path / "a_package"
    package.mkdir()
    for name in ("__init__", "_private", "second", "first"):
        (package / f"{name}.py").write_text(f"KIND = {name!r}")
    (package / "other.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert discovered("a_package", "KIND") == ["first", "second"]

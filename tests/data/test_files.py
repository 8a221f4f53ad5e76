import pytest

from keras_vit.data.files import file_of_row, read_csv


def test_a_byte_order_mark_is_no_part_of_the_first_value(tmp_path):
    (tmp_path / "a.csv").write_text("file,label\n", encoding="utf-8-sig")
    assert read_csv(tmp_path / "a.csv") == [(1, ["file", "label"])]


@pytest.mark.parametrize(
    "text, message", [('a\n"b,c\nd\n', "line 3: unexpected end"), ('a\n"b"c\n', "line 2: .*expected")]
)
def test_a_quotation_mark_out_of_place_is_refused(text, message, tmp_path):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ValueError, match=rf"a\.csv, {message}"):
        read_csv(tmp_path / "a.csv")


@pytest.mark.parametrize("file", ["../b.png", "/b.png", "a/../../b.png", ".."])
def test_a_file_outside_of_the_folder_is_refused(file, tmp_path):
    (tmp_path / "b.png").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="table: expected a file in '.*folder'; got"):
        file_of_row(tmp_path / "folder", file, "table")

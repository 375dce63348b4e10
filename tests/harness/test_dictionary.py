"""The data dictionary says what the models say."""

from harness.claims import ClaimRow
from harness.dictionary import PATH, dictionary
from harness.records import Record, Sample


def test_docs_are_current():
    assert PATH.read_text() == dictionary(), "run: python -m harness.dictionary"


def test_every_column_is_described():
    for model in (Record, Sample, ClaimRow):
        for name, field in model.model_fields.items():
            assert field.description, name
            assert f"| `{name}` |" in PATH.read_text()

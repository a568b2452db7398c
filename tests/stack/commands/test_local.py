"""`everturn up`: what it says of a setting that cannot be."""

from pathlib import Path

import pytest

from stack.cli import main


@pytest.mark.parametrize("port", ["22x", "-1", ""])
def test_a_port_that_is_no_number_is_named_with_both_of_its_settings(
    port: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EVERTURN_PORT", port)
    with pytest.raises(SystemExit, match="2"):
        main(["--data", str(tmp_path), "up", "--model", str(tmp_path)])
    assert f"'{port}' is no port: set --port or EVERTURN_PORT to a number" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())

import pytest

from rag_pipeline.core.languages import language, main_script


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("What is the size of bovine coronavirus?", "english", id="English"),
        pytest.param("Wie hoch ist der Zuschuss für das Essen?", "german", id="German"),
        pytest.param("Quel est le délai de la demande ?", "french", id="French"),
        pytest.param("¿Cuál es el plazo de la solicitud?", "spanish", id="Spanish"),
        pytest.param("什么是 DNA 复制？", "chinese", id="Chinese with a Latin word"),
        pytest.param("東京タワーの高さは", "japanese", id="Japanese"),
        pytest.param("서울의 인구", "korean", id="Korean"),
        pytest.param("Какой срок?", "russian", id="Russian"),
        pytest.param("E-4711", None, id="identifier"),
        pytest.param("war crimes", None, id="too short to tell"),
        pytest.param("12 + 3", None, id="no letters"),
    ],
)
def test_language(text: str, expected: str | None) -> None:
    assert language(text) == expected


def test_the_script_of_most_of_the_text() -> None:
    assert main_script("用 Python 写的批处理文档流水线") == "han"
    assert main_script("The word 流水线 means pipeline") == "latin"
    assert main_script("123") is None

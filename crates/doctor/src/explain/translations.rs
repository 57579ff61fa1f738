//! Messages of the C library, of shells and of Windows in other languages.
//!
//! A message is looked up as its English original; the line that is shown stays as it was posted.

use aho_corasick::{AhoCorasick, MatchKind};
use std::borrow::Cow;
use std::sync::LazyLock;

/// System messages in other languages, and their English originals.
/// Sources: the translations of glibc (`po/*.po`), bash, GNU make and Windows.
const PHRASES: &[(&str, &str)] = &[
    // EACCES
    ("Keine Berechtigung", "Permission denied"),
    ("Permission non accordée", "Permission denied"),
    ("Permiso denegado", "Permission denied"),
    ("Permesso negato", "Permission denied"),
    ("Permissão negada", "Permission denied"),
    ("Отказано в доступе", "Permission denied"),
    ("Brak dostępu", "Permission denied"),
    ("权限不够", "Permission denied"),
    ("拒绝访问", "Permission denied"),
    ("許可がありません", "Permission denied"),
    ("허가 거부", "Permission denied"),
    // ENOENT
    (
        "Datei oder Verzeichnis nicht gefunden",
        "No such file or directory",
    ),
    (
        "Aucun fichier ou dossier de ce",
        "No such file or directory",
    ),
    (
        "Aucun fichier ou répertoire de ce",
        "No such file or directory",
    ),
    (
        "No existe el archivo o el directorio",
        "No such file or directory",
    ),
    (
        "No existe el fichero o el directorio",
        "No such file or directory",
    ),
    (
        "File o directory non esistente",
        "No such file or directory",
    ),
    (
        "Arquivo ou diretório inexistente",
        "No such file or directory",
    ),
    (
        "Ficheiro ou diretoria inexistente",
        "No such file or directory",
    ),
    ("Нет такого файла или каталога", "No such file or directory"),
    (
        "Nie ma takiego pliku ani katalogu",
        "No such file or directory",
    ),
    ("没有那个文件或目录", "No such file or directory"),
    ("沒有此一檔案或目錄", "No such file or directory"),
    (
        "そのようなファイルやディレクトリはありません",
        "No such file or directory",
    ),
    (
        "그런 파일이나 디렉터리가 없습니다",
        "No such file or directory",
    ),
    // ENOMEM, EINVAL
    (
        "Nicht genügend Hauptspeicher verfügbar",
        "Cannot allocate memory",
    ),
    ("Ne peut allouer de la mémoire", "Cannot allocate memory"),
    ("No se pudo asignar memoria", "Cannot allocate memory"),
    ("Невозможно выделить память", "Cannot allocate memory"),
    ("无法分配内存", "Cannot allocate memory"),
    ("メモリを確保できません", "Cannot allocate memory"),
    ("Das Argument ist ungültig", "Invalid argument"),
    ("Argument invalide", "Invalid argument"),
    ("Argumento inválido", "Invalid argument"),
    ("Недопустимый аргумент", "Invalid argument"),
    ("无效的参数", "Invalid argument"),
    // The loader.
    (
        "Kann die Shared-Object-Datei nicht öffnen",
        "cannot open shared object file",
    ),
    (
        "ne peut ouvrir le fichier d'objet partagé",
        "cannot open shared object file",
    ),
    (
        "Ne peut ouvrir le fichier d'objet partagé",
        "cannot open shared object file",
    ),
    (
        "no se puede abrir el archivo del objeto compartido",
        "cannot open shared object file",
    ),
    (
        "no se puede abrir el fichero del objeto compartido",
        "cannot open shared object file",
    ),
    (
        "impossibile aprire il file oggetto condiviso",
        "cannot open shared object file",
    ),
    (
        "não foi possível abrir arquivo de objeto compartilhado",
        "cannot open shared object file",
    ),
    (
        "невозможно открыть разделяемый объектный файл",
        "cannot open shared object file",
    ),
    (
        "невозможно открыть общий объектный файл",
        "cannot open shared object file",
    ),
    (
        "nie można otworzyć pliku obiektu dzielonego",
        "cannot open shared object file",
    ),
    ("无法打开共享对象文件", "cannot open shared object file"),
    ("无法打开共享目标文件", "cannot open shared object file"),
    (
        "共有オブジェクトファイルを開けません",
        "cannot open shared object file",
    ),
    (
        "공유 오브젝트 파일을 열 수 없습니다",
        "cannot open shared object file",
    ),
    ("nicht definiertes Symbol", "undefined symbol"),
    ("symbole non défini", "undefined symbol"),
    ("símbolo no definido", "undefined symbol"),
    ("неопределённый символ", "undefined symbol"),
    ("未定义的符号", "undefined symbol"),
    // Signals.
    ("Speicherzugriffsfehler", "Segmentation fault"),
    ("Erreur de segmentation", "Segmentation fault"),
    ("Violación de segmento", "Segmentation fault"),
    ("Errore di segmentazione", "Segmentation fault"),
    ("Falha de segmentação", "Segmentation fault"),
    ("Ошибка сегментирования", "Segmentation fault"),
    ("Naruszenie ochrony pamięci", "Segmentation fault"),
    ("段错误", "Segmentation fault"),
    ("段錯誤", "Segmentation fault"),
    ("세그멘테이션 오류", "Segmentation fault"),
    // dpkg and make.
    (
        "Fehler beim Bearbeiten des Paketes",
        "error processing package",
    ),
    ("erreur de traitement du paquet", "error processing package"),
    ("error al procesar el paquete", "error processing package"),
    (
        "errore nell'elaborare il pacchetto",
        "error processing package",
    ),
    ("erro ao processar o pacote", "error processing package"),
    ("ошибка при обработке пакета", "error processing package"),
    ("处理软件包", "error processing package"),
    ("Hängt ab von", "Depends"),
    ("Dépend", "Depends"),
    ("Depende", "Depends"),
    ("Dipende", "Depends"),
    ("Зависит", "Depends"),
    ("依赖", "Depends"),
    (
        "soll aber nicht installiert werden",
        "but it is not going to be installed",
    ),
    (
        "mais ne sera pas installé",
        "but it is not going to be installed",
    ),
    (
        "pero no va a instalarse",
        "but it is not going to be installed",
    ),
    (
        "ma non sta per essere installato",
        "but it is not going to be installed",
    ),
    (
        "но он не будет установлен",
        "but it is not going to be installed",
    ),
    ("但是它将不会被安装", "but it is not going to be installed"),
];

static ANY: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
    // Of two phrases that begin at one place, the first of the list is meant. Constant phrases: the test compiles them.
    let first = AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostFirst)
        .build(PHRASES.iter().map(|(phrase, _)| phrase));
    first.ok()
});

/// The line in English, as far as these phrases go.
pub(super) fn in_english(line: &str) -> Cow<'_, str> {
    match &*ANY {
        Some(any) if any.is_match(line) => {
            let mut english = String::with_capacity(line.len());
            any.replace_all_with(line, &mut english, |found, _, english| {
                english.push_str(PHRASES[found.pattern().as_usize()].1);
                true
            });
            Cow::Owned(english)
        }
        _ => Cow::Borrowed(line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_another_language_becomes_the_english_one() {
        for (posted, english) in [
            (
                "OSError: libhsa-runtime64.so.1: Kann die Shared-Object-Datei nicht öffnen: Datei oder Verzeichnis nicht gefunden",
                "OSError: libhsa-runtime64.so.1: cannot open shared object file: No such file or directory",
            ),
            (
                "Unable to open /dev/kfd read-write: 权限不够",
                "Unable to open /dev/kfd read-write: Permission denied",
            ),
            (
                "Erreur de segmentation (core dumped)",
                "Segmentation fault (core dumped)",
            ),
            ("loss 0.1 — fertig", "loss 0.1 — fertig"),
        ] {
            assert_eq!(in_english(posted), english);
        }
    }
}

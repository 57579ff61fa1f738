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
    // cmd.exe, for a command that it does not find
    (
        "不是内部或外部命令，也不是可运行的程序",
        "is not recognized as an internal or external command",
    ),
    (
        "ist entweder falsch geschrieben oder konnte nicht gefunden werden",
        "is not recognized as an internal or external command",
    ),
    (
        "n'est pas reconnu en tant que commande interne",
        "is not recognized as an internal or external command",
    ),
    (
        "no se reconoce como un comando interno o externo",
        "is not recognized as an internal or external command",
    ),
    (
        "non è riconosciuto come comando interno o esterno",
        "is not recognized as an internal or external command",
    ),
    (
        "não é reconhecido como um comando interno",
        "is not recognized as an internal or external command",
    ),
    (
        "не является внутренней или внешней",
        "is not recognized as an internal or external command",
    ),
    (
        "nie jest rozpoznawana jako polecenie wewnętrzne lub zewnętrzne",
        "is not recognized as an internal or external command",
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
    // ENOSPC, EPERM, EIO, EBUSY
    (
        "Auf dem Gerät ist kein Speicherplatz mehr verfügbar",
        "No space left on device",
    ),
    (
        "Aucun espace disponible sur le périphérique",
        "No space left on device",
    ),
    (
        "No queda espacio en el dispositivo",
        "No space left on device",
    ),
    ("Spazio esaurito sul device", "No space left on device"),
    (
        "Não há espaço disponível no dispositivo",
        "No space left on device",
    ),
    (
        "На устройстве не осталось свободного места",
        "No space left on device",
    ),
    (
        "Na urządzeniu brak wolnego miejsca",
        "No space left on device",
    ),
    ("设备上没有空间", "No space left on device"),
    ("裝置上已無多餘空間", "No space left on device"),
    ("デバイスに空き領域がありません", "No space left on device"),
    ("장치에 남은 공간이 없음", "No space left on device"),
    ("Die Operation ist nicht erlaubt", "Operation not permitted"),
    ("Vorgang nicht zulässig", "Operation not permitted"),
    ("Opération non permise", "Operation not permitted"),
    ("Operación no permitida", "Operation not permitted"),
    ("Operazione non permessa", "Operation not permitted"),
    ("Operação não permitida", "Operation not permitted"),
    ("Операция не позволена", "Operation not permitted"),
    ("不允许的操作", "Operation not permitted"),
    ("許可されていない操作です", "Operation not permitted"),
    ("Eingabe-/Ausgabefehler", "Input/output error"),
    ("Erreur d'entrée/sortie", "Input/output error"),
    ("Error de entrada/salida", "Input/output error"),
    ("Errore di input/output", "Input/output error"),
    ("Erro de entrada/saída", "Input/output error"),
    ("Ошибка ввода/вывода", "Input/output error"),
    ("输入/输出错误", "Input/output error"),
    ("入力/出力エラーです", "Input/output error"),
    (
        "Das Gerät oder die Ressource ist belegt",
        "Device or resource busy",
    ),
    (
        "Périphérique ou ressource occupé",
        "Device or resource busy",
    ),
    ("Dispositivo o recurso ocupado", "Device or resource busy"),
    ("Dispositivo o risorsa occupata", "Device or resource busy"),
    (
        "Dispositivo ou recurso está ocupado",
        "Device or resource busy",
    ),
    ("Устройство или ресурс занято", "Device or resource busy"),
    ("设备或资源忙", "Device or resource busy"),
    (
        "デバイスもしくはリソースがビジー状態です",
        "Device or resource busy",
    ),
    // What a shell says of a process.
    ("Getötet", "Killed"),
    ("Processus arrêté", "Killed"),
    ("Terminado (killed)", "Killed"),
    ("Ucciso", "Killed"),
    ("Убито", "Killed"),
    ("已杀死", "Killed"),
    ("已终止", "Killed"),
    ("強制終了", "Killed"),
    ("죽었음", "Killed"),
    ("Abgebrochen (Speicherabzug", "Aborted"),
    ("Abandon (core", "Aborted"),
    ("Abortado (`core'", "Aborted"),
    ("Abortado (core", "Aborted"),
    ("Annullato (core", "Aborted"),
    ("Аварийный останов", "Aborted"),
    ("Przerwane (zrzut", "Aborted"),
    ("已放弃", "Aborted"),
    ("已中止 (核心", "Aborted"),
    ("中止 (コアダンプ", "Aborted"),
    ("Ungültiger Maschinenbefehl", "Illegal instruction"),
    ("Instruction non permise", "Illegal instruction"),
    ("Instrucción ilegal", "Illegal instruction"),
    ("Istruzione non consentita", "Illegal instruction"),
    ("Instrução ilegal", "Illegal instruction"),
    ("Недопустимая инструкция", "Illegal instruction"),
    ("Недопустимая команда", "Illegal instruction"),
    ("非法指令", "Illegal instruction"),
    ("不正な命令です", "Illegal instruction"),
    ("Bus-Zugriffsfehler", "Bus error"),
    ("Erreur du bus", "Bus error"),
    ("Error en el bus", "Bus error"),
    ("Errore di bus", "Bus error"),
    ("Erro no barramento", "Bus error"),
    ("Ошибка шины", "Bus error"),
    ("总线错误", "Bus error"),
    ("バスエラー", "Bus error"),
    ("Befehl nicht gefunden", "command not found"),
    ("Kommando nicht gefunden", "command not found"),
    ("commande introuvable", "command not found"),
    ("orden no encontrada", "command not found"),
    ("no se encontró la orden", "command not found"),
    ("comando non trovato", "command not found"),
    ("comando não encontrado", "command not found"),
    ("команда не найдена", "command not found"),
    ("nie znaleziono polecenia", "command not found"),
    ("未找到命令", "command not found"),
    ("找不到命令", "command not found"),
    ("コマンドが見つかりません", "command not found"),
    ("명령어를 찾을 수 없음", "command not found"),
    ("명령을 찾을 수 없습니다", "command not found"),
    // cmd.exe.
    (
        "ist entweder falsch geschrieben oder",
        "is not recognized as an internal or external command",
    ),
    (
        "nie jest rozpoznawana jako polecenie wewnętrzne",
        "is not recognized as an internal or external command",
    ),
    (
        "nie jest rozpoznawany jako polecenie wewnętrzne",
        "is not recognized as an internal or external command",
    ),
    (
        "不是内部或外部命令",
        "is not recognized as an internal or external command",
    ),
    (
        "不是內部或外部命令",
        "is not recognized as an internal or external command",
    ),
    (
        "は、内部コマンドまたは外部コマンド",
        "is not recognized as an internal or external command",
    ),
    (
        "내부 또는 외부 명령",
        "is not recognized as an internal or external command",
    ),
    // apt.
    (
        "Die folgenden Pakete haben unerfüllte Abhängigkeiten",
        "The following packages have unmet dependencies",
    ),
    (
        "Les paquets suivants contiennent des dépendances non satisfaites",
        "The following packages have unmet dependencies",
    ),
    (
        "Los siguientes paquetes tienen dependencias incumplidas",
        "The following packages have unmet dependencies",
    ),
    (
        "I seguenti pacchetti hanno dipendenze non soddisfatte",
        "The following packages have unmet dependencies",
    ),
    (
        "Os pacotes a seguir têm dependências desencontradas",
        "The following packages have unmet dependencies",
    ),
    (
        "Os pacotes a seguir têm dependências não satisfeitas",
        "The following packages have unmet dependencies",
    ),
    (
        "Пакеты, имеющие неудовлетворённые зависимости",
        "The following packages have unmet dependencies",
    ),
    (
        "Następujące pakiety mają niespełnione zależności",
        "The following packages have unmet dependencies",
    ),
    (
        "下列软件包有未满足的依赖关系",
        "The following packages have unmet dependencies",
    ),
    (
        "以下のパッケージには満たせない依存関係があります",
        "The following packages have unmet dependencies",
    ),
    (
        "다음 패키지의 의존성이 맞지 않습니다",
        "The following packages have unmet dependencies",
    ),
    (
        "Impossible de trouver le paquet",
        "Unable to locate package",
    ),
    (
        "No se ha podido localizar el paquete",
        "Unable to locate package",
    ),
    (
        "Impossibile trovare il pacchetto",
        "Unable to locate package",
    ),
    ("Impossível encontrar o pacote", "Unable to locate package"),
    (
        "Não foi possível encontrar o pacote",
        "Unable to locate package",
    ),
    ("Не удалось найти пакет", "Unable to locate package"),
    ("Nie udało się odnaleźć pakietu", "Unable to locate package"),
    ("无法定位软件包", "Unable to locate package"),
    ("無法定位套件", "Unable to locate package"),
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
            (
                "bash: rocminfo: Befehl nicht gefunden",
                "bash: rocminfo: command not found",
            ),
            (
                "E: Impossible de trouver le paquet rocm-hip-sdk",
                "E: Unable to locate package rocm-hip-sdk",
            ),
            (
                "[1]    4242 已杀死   python train.py",
                "[1]    4242 Killed   python train.py",
            ),
            ("loss 0.1 — fertig", "loss 0.1 — fertig"),
        ] {
            assert_eq!(in_english(posted), english);
        }
    }
}

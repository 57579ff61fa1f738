//! Tables with commas: what `amd-smi --csv` and `rocm-smi --csv` print, also among other text.

/// The rows of every table whose heading begins with the column `first`, as names and values.
pub(super) fn rows<'a>(text: &'a str, first: &str) -> Vec<Vec<(&'a str, &'a str)>> {
    let mut heading: Option<Vec<&str>> = None;
    let mut rows = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let cells = cells(line);
        if cells.len() > 1 && cells[0] == first {
            heading = Some(cells);
            continue;
        }
        let Some(names) = &heading else { continue };
        if cells.len() == names.len() {
            rows.push(names.iter().copied().zip(cells).collect());
        } else {
            // Something else: the table is over.
            heading = None;
        }
    }
    rows
}

/// The cells of a line; one in quotes may contain commas.
fn cells(line: &str) -> Vec<&str> {
    let mut cells = Vec::new();
    let mut is_quoted = false;
    let mut start = 0;
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            b'"' => is_quoted = !is_quoted,
            b',' if !is_quoted => {
                cells.push(&line[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    cells.push(&line[start..]);
    cells
        .into_iter()
        .map(|cell| cell.trim().trim_matches('"'))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_ends_where_its_shape_does() {
        let text = "gpu,name\n0,\"a, b\"\n\n1,c\nx\nx,y\ngpu,bdf\n0,03:00.0\n";
        assert_eq!(
            rows(text, "gpu"),
            [
                vec![("gpu", "0"), ("name", "a, b")],
                vec![("gpu", "1"), ("name", "c")],
                vec![("gpu", "0"), ("bdf", "03:00.0")],
            ]
        );
    }
}

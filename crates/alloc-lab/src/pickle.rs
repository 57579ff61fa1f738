//! Python's pickle format, for plain data: the format of PyTorch's memory snapshots.
//!
//! A pickle is a program for a small stack machine, and the instructions that call
//! functions make untrusted ones dangerous. This machine has none of them: it knows
//! dictionaries, lists, tuples, text, numbers, and nothing that can be executed. Values are stored in one
//! list and refer to each other by index, so that a deeply nested value needs no deep stack, and a value
//! that is contained many times is stored once.
//!
//! All protocols are read, from the printable one of old Pythons (0) to today's (5).
//! Instructions and their bytes: `Lib/pickletools.py` of CPython.

mod lines;

use std::collections::HashMap;

/// The most values that may be made or referred to: ten times what PyTorch writes for a
/// million requests. A byte of a pickle can ask for some fifty bytes of memory, and this
/// bounds them.
const MOST_VALUES: usize = 1 << 28;

/// A value of a pickle.
#[derive(Clone, Debug, PartialEq)]
enum Node {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    /// Text, and bytes too.
    Text(String),
    /// A list, tuple or set: its elements.
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// The beginning of a group on the stack.
    Mark,
}

type Id = usize;

/// The values that all share; their places are their numbers.
const CONSTANTS: [Node; 4] = [Node::None, Node::Bool(false), Node::Bool(true), Node::Mark];
const NONE: Id = 0;
const FALSE: Id = 1;
const TRUE: Id = 2;
const MARK: Id = 3;

/// A pickle that has been read.
#[derive(Clone, Debug)]
pub struct Pickle {
    nodes: Vec<Node>,
    root: Id,
}

/// A value in a pickle.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a> {
    pickle: &'a Pickle,
    id: Id,
}

/// Why something is not a pickle of plain data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickleError {
    /// It ends in the middle.
    #[error("the pickle ends in the middle")]
    Truncated,
    /// It wants to make an object or call a function.
    #[error(
        "the pickle wants to make a Python object (instruction {0:#04x}), and this reader takes plain data only"
    )]
    NotPlain(u8),
    /// More values than any snapshot has.
    #[error("the pickle has more than {MOST_VALUES} values")]
    TooMany,
    /// No pickle, or one that is damaged.
    #[error("this is no pickle, or a damaged one: {0}")]
    Damaged(&'static str),
}

impl Pickle {
    /// Whether the bytes begin as pickles do. In protocol 0 and 1 that is an instruction for
    /// an empty dictionary or list, which nothing else that is read here begins with.
    pub fn is_likely(bytes: &[u8]) -> bool {
        matches!(bytes, [0x80 | b'}' | b']', ..] | [b'(', b'd' | b'l', ..])
    }

    /// Reads a pickle of plain data.
    ///
    /// # Errors
    /// When it is damaged, or has more than plain data.
    pub fn read(bytes: &[u8]) -> Result<Pickle, PickleError> {
        let mut machine = Machine {
            bytes,
            at: 0,
            nodes: CONSTANTS.to_vec(),
            stack: Vec::new(),
            memo: HashMap::new(),
            pushed: 0,
        };
        let root = machine.run()?;
        Ok(Pickle {
            nodes: machine.nodes,
            root,
        })
    }

    /// The whole value.
    pub fn root(&self) -> Value<'_> {
        Value {
            pickle: self,
            id: self.root,
        }
    }
}

impl<'a> Value<'a> {
    fn node(self) -> &'a Node {
        &self.pickle.nodes[self.id]
    }

    fn at(self, id: Id) -> Value<'a> {
        Value { id, ..self }
    }

    /// The value of a key, if this is a dictionary that has it.
    pub fn get(self, key: &str) -> Option<Value<'a>> {
        let Node::Dict(entries) = self.node() else {
            return None;
        };
        // The last of equal keys counts, as in Python.
        let found = entries
            .iter()
            .rev()
            .find(|(name, _)| self.at(*name).text() == Some(key));
        found.map(|(_, value)| self.at(*value))
    }

    /// The entries of a list or tuple; none of anything else.
    pub fn items(self) -> impl Iterator<Item = Value<'a>> {
        let items: &[Id] = match self.node() {
            Node::List(items) => items,
            _ => &[],
        };
        items.iter().map(move |id| self.at(*id))
    }

    /// How many entries a list or tuple has.
    pub fn len(self) -> usize {
        match self.node() {
            Node::List(items) => items.len(),
            _ => 0,
        }
    }

    /// Whether it has no entries.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Equal for two references to the same value in the pickle. Needed for walking over values: what is
    /// stored once may be referred to any number of times.
    pub fn identity(self) -> usize {
        self.id
    }

    /// Whether it is a list or tuple.
    pub fn is_list(self) -> bool {
        matches!(self.node(), Node::List(_))
    }

    /// The value as a string, if it is one.
    pub fn text(self) -> Option<&'a str> {
        match self.node() {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A whole number that is not negative.
    pub fn number(self) -> Option<u64> {
        match self.node() {
            Node::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    nodes: Vec<Node>,
    stack: Vec<Id>,
    memo: HashMap<u64, Id>,
    pushed: usize,
}

impl Machine<'_> {
    fn run(&mut self) -> Result<Id, PickleError> {
        loop {
            let instruction = self.take(1)?[0];
            match instruction {
                0x80 => drop(self.take(1)?), // PROTO
                0x95 => drop(self.take(8)?), // FRAME
                b'.' => return self.pop(),
                b'N' => self.push_id(NONE)?,
                0x88 => self.push_id(TRUE)?,
                0x89 => self.push_id(FALSE)?,
                b'(' => self.push_id(MARK)?,
                b'K' => self.push_int(1)?,
                b'M' => self.push_int(2)?,
                b'J' => {
                    let bytes = self.take(4)?.try_into().unwrap_or_default();
                    self.push(Node::Int(i32::from_le_bytes(bytes).into()))?;
                }
                0x8a => self.push_long(1)?,
                0x8b => self.push_long(4)?,
                b'G' => {
                    let bytes = self.take(8)?.try_into().unwrap_or_default();
                    self.push(Node::Float(f64::from_be_bytes(bytes)))?;
                }
                0x8c | b'C' | b'U' => self.push_text(1)?,
                b'X' | b'B' | b'T' => self.push_text(4)?,
                0x8d | 0x8e | 0x96 => self.push_text(8)?,
                b'I' | b'L' => match lines::integer(self.line()?) {
                    Some(lines::Integer::Bool(yes)) => {
                        self.push_id(if yes { TRUE } else { FALSE })?;
                    }
                    Some(lines::Integer::Number(number)) => self.push(Node::Int(number))?,
                    None => return Err(PickleError::Damaged("a number without digits")),
                },
                b'F' => {
                    let number = lines::float(self.line()?);
                    let number = number.ok_or(PickleError::Damaged("a number without digits"))?;
                    self.push(Node::Float(number))?;
                }
                b'S' => {
                    let text = lines::quoted(self.line()?);
                    let text = text.ok_or(PickleError::Damaged("a text without quotes"))?;
                    self.push(Node::Text(text))?;
                }
                b'V' => {
                    let text = lines::unicode(self.line()?);
                    self.push(Node::Text(text))?;
                }
                // Sets are read as lists.
                b']' | b')' | 0x8f => self.push(Node::List(Vec::new()))?,
                b'}' => self.push(Node::Dict(Vec::new()))?,
                b't' | b'l' | 0x91 => {
                    let items = self.pop_group()?;
                    self.push(Node::List(items))?;
                }
                b'd' => {
                    let items = self.pop_group()?;
                    self.push(Node::Dict(pairs(&items)?))?;
                }
                0x85..=0x87 => {
                    let mut items = Vec::new();
                    for _ in 0x84..instruction {
                        items.insert(0, self.pop()?);
                    }
                    self.push(Node::List(items))?;
                }
                b'a' => {
                    let item = self.pop()?;
                    self.list()?.push(item);
                }
                b'e' | 0x90 => {
                    let items = self.pop_group()?;
                    self.list()?.extend(items);
                }
                b's' => {
                    let value = self.pop()?;
                    let key = self.pop()?;
                    self.dict()?.push((key, value));
                }
                b'u' => {
                    let items = self.pop_group()?;
                    let entries = pairs(&items)?;
                    self.dict()?.extend(entries);
                }
                b'0' => drop(self.pop()?),
                b'1' => drop(self.pop_group()?),
                b'2' => {
                    let id = self.pop()?;
                    self.push_id(id)?;
                    self.push_id(id)?;
                }
                0x94 => {
                    let number = self.memo.len() as u64;
                    self.remember(number)?;
                }
                b'q' => {
                    let number = self.length(1)?;
                    self.remember(number)?;
                }
                b'r' => {
                    let number = self.length(4)?;
                    self.remember(number)?;
                }
                b'p' => {
                    let number = self.memo_name()?;
                    self.remember(number)?;
                }
                b'h' => {
                    let number = self.length(1)?;
                    self.recall(number)?;
                }
                b'j' => {
                    let number = self.length(4)?;
                    self.recall(number)?;
                }
                b'g' => {
                    let number = self.memo_name()?;
                    self.recall(number)?;
                }
                // GLOBAL, REDUCE, BUILD, OBJ, INST, NEWOBJ, STACK_GLOBAL, persistent
                // names, extensions: everything that names or calls something of Python's.
                b'c'
                | b'R'
                | b'b'
                | b'o'
                | b'i'
                | 0x81
                | 0x92
                | 0x93
                | b'P'
                | b'Q'
                | 0x82..=0x84 => {
                    return Err(PickleError::NotPlain(instruction));
                }
                _ => return Err(PickleError::Damaged("an instruction that is not known")),
            }
        }
    }

    /// The next bytes; there are never more of them than the file has.
    fn take(&mut self, count: u64) -> Result<&[u8], PickleError> {
        let rest = self.bytes.len() - self.at;
        let count = usize::try_from(count).map_err(|_| PickleError::Truncated)?;
        if count > rest {
            return Err(PickleError::Truncated);
        }
        self.at += count;
        Ok(&self.bytes[self.at - count..self.at])
    }

    /// A number of `width` bytes, without a sign.
    fn length(&mut self, width: u64) -> Result<u64, PickleError> {
        let bytes = self.take(width)?;
        let number = bytes
            .iter()
            .rev()
            .fold(0, |number, byte| number << 8 | u64::from(*byte));
        Ok(number)
    }

    /// The rest of the line, for the instructions of protocol 0.
    fn line(&mut self) -> Result<&[u8], PickleError> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|byte| *byte == b'\n');
        let end = end.ok_or(PickleError::Truncated)?;
        self.at += end + 1;
        Ok(&rest[..end])
    }

    /// The number of a remembered value, as protocol 0 writes it.
    fn memo_name(&mut self) -> Result<u64, PickleError> {
        match lines::integer(self.line()?) {
            Some(lines::Integer::Number(number)) => u64::try_from(number).ok(),
            // `00` and `01` are numbers here.
            Some(lines::Integer::Bool(one)) => Some(one.into()),
            None => None,
        }
        .ok_or(PickleError::Damaged("a reference without a number"))
    }

    fn push(&mut self, node: Node) -> Result<(), PickleError> {
        self.nodes.push(node);
        self.push_id(self.nodes.len() - 1)
    }

    fn push_id(&mut self, id: Id) -> Result<(), PickleError> {
        self.pushed += 1;
        if self.pushed > MOST_VALUES {
            return Err(PickleError::TooMany);
        }
        self.stack.push(id);
        Ok(())
    }

    fn push_int(&mut self, width: u64) -> Result<(), PickleError> {
        let number = self.length(width)?;
        self.push(Node::Int(number as i64))
    }

    /// A number of any length with a sign; those beyond 64 bits become the nearest.
    fn push_long(&mut self, width: u64) -> Result<(), PickleError> {
        let length = self.length(width)?;
        let bytes = self.take(length)?;
        let negative = bytes.last().is_some_and(|byte| *byte >= 0x80);
        let mut wide = if negative { [0xff; 16] } else { [0; 16] };
        let number = match bytes.len() {
            0..=16 => {
                wide[..bytes.len()].copy_from_slice(bytes);
                i128::from_le_bytes(wide)
            }
            _ if negative => i128::MIN,
            _ => i128::MAX,
        };
        let number = number.clamp(i64::MIN.into(), i64::MAX.into());
        self.push(Node::Int(number as i64))
    }

    fn push_text(&mut self, width: u64) -> Result<(), PickleError> {
        let length = self.length(width)?;
        let text = String::from_utf8_lossy(self.take(length)?).into_owned();
        self.push(Node::Text(text))
    }

    fn pop(&mut self) -> Result<Id, PickleError> {
        match self.stack.pop() {
            Some(id) if id != MARK => Ok(id),
            _ => Err(PickleError::Damaged("a value is missing")),
        }
    }

    /// What lies above the last mark.
    fn pop_group(&mut self) -> Result<Vec<Id>, PickleError> {
        let mark = self.stack.iter().rposition(|id| *id == MARK);
        let mark = mark.ok_or(PickleError::Damaged("a group without a beginning"))?;
        let items = self.stack.split_off(mark + 1);
        self.stack.pop();
        Ok(items)
    }

    fn list(&mut self) -> Result<&mut Vec<Id>, PickleError> {
        match self.stack.last().map(|id| &mut self.nodes[*id]) {
            Some(Node::List(items)) => Ok(items),
            _ => Err(PickleError::Damaged("an entry for a list that is none")),
        }
    }

    fn dict(&mut self) -> Result<&mut Vec<(Id, Id)>, PickleError> {
        match self.stack.last().map(|id| &mut self.nodes[*id]) {
            Some(Node::Dict(entries)) => Ok(entries),
            _ => Err(PickleError::Damaged(
                "an entry for a dictionary that is none",
            )),
        }
    }

    fn remember(&mut self, number: u64) -> Result<(), PickleError> {
        let id = self.stack.last().copied().filter(|id| *id != MARK);
        let id = id.ok_or(PickleError::Damaged("nothing to remember"))?;
        self.memo.insert(number, id);
        Ok(())
    }

    fn recall(&mut self, number: u64) -> Result<(), PickleError> {
        let id = self.memo.get(&number).copied();
        self.push_id(id.ok_or(PickleError::Damaged("nothing was remembered"))?)
    }
}

fn pairs(items: &[Id]) -> Result<Vec<(Id, Id)>, PickleError> {
    match items.len() % 2 {
        0 => Ok(items.chunks(2).map(|pair| (pair[0], pair[1])).collect()),
        _ => Err(PickleError::Damaged("a key without a value")),
    }
}

#[cfg(test)]
mod tests;

//! What the C++ function of an operator takes, and the name that compilers give it: `at::_ops::mul_Scalar::call(const
//! at::Tensor&, const c10::Scalar&)` is `_ZN2at4_ops10mul_Scalar4callERKNS_6TensorERKN3c106ScalarE` everywhere but on
//! Windows.

use super::C_scalar;

/// The most parameters that a function may have here.
pub(crate) const MOST: usize = 8;

/// One parameter.
pub(crate) enum Argument {
    Tensor {
        is_written: bool,
    },
    /// One that is made for the call, and written to.
    Made,
    OptionalTensor,
    Scalar,
    OptionalScalar,
    /// A scalar that tch leaves out.
    Default(C_scalar),
    Integer,
    Truth,
    Integers {
        symbolic: bool,
    },
}

/// Those of an operator with a `Scalar`, or `None` for one that takes what is not here.
pub(crate) fn arguments(codes: &str) -> Option<Vec<Argument>> {
    let mut arguments = Vec::new();
    let mut rest = codes;
    while !rest.is_empty() {
        if let Some(default) = rest.strip_prefix('{') {
            let (number, after) = default.split_once('}')?;
            arguments.push(Argument::Default(C_scalar::parse(number)?));
            rest = after;
            continue;
        }
        let unsigned = rest.trim_start_matches(['>', '&']);
        let is_written = unsigned.len() < rest.len();
        let mut characters = unsigned.chars();
        let code = characters.next()?;
        rest = characters.as_str();
        let optional = rest.strip_prefix('?');
        rest = optional.unwrap_or(rest);
        arguments.push(match (code, optional) {
            ('T', None) => Argument::Tensor { is_written },
            ('T', Some(_)) | ('t', None) => Argument::OptionalTensor,
            ('S', None) => Argument::Scalar,
            ('S', Some(_)) => Argument::OptionalScalar,
            ('O', None) => Argument::Made,
            ('i', None) => Argument::Integer,
            ('b', None) => Argument::Truth,
            ('A' | 'N', None) => Argument::Integers {
                symbolic: code == 'N',
            },
            _ => return None,
        });
    }
    // A list takes two registers, of which there may be six, and the result's place may be in one.
    let lists = arguments
        .iter()
        .filter(|argument| matches!(argument, Argument::Integers { .. }))
        .count();
    (lists == 0 && arguments.len() <= MOST || 1 + arguments.len() + lists <= 6).then_some(arguments)
}

/// A type of C++; the path of a class begins with its namespace.
#[derive(Debug)]
enum Type {
    Class([&'static str; 2]),
    /// A template with its argument.
    Of([&'static str; 2], Box<Type>),
    Long,
    Bool,
    Const(Box<Type>),
    Reference(Box<Type>),
}

impl Argument {
    pub(crate) fn is_written(&self) -> bool {
        matches!(self, Self::Tensor { is_written: true } | Self::Made)
    }

    fn in_cpp(&self) -> Type {
        let tensor = || Type::Class(["at", "Tensor"]);
        let scalar = || Type::Class(["c10", "Scalar"]);
        let constant = |of| Type::Reference(Box::new(Type::Const(Box::new(of))));
        let optional = |of| constant(Type::Of(["std", "optional"], Box::new(of)));
        match self {
            written if written.is_written() => Type::Reference(Box::new(tensor())),
            Self::Tensor { .. } | Self::Made => constant(tensor()),
            Self::OptionalTensor => optional(tensor()),
            Self::Scalar | Self::Default(_) => constant(scalar()),
            Self::OptionalScalar => optional(scalar()),
            Self::Integer => Type::Long,
            Self::Truth => Type::Bool,
            Self::Integers { symbolic: false } => {
                Type::Of(["c10", "ArrayRef"], Box::new(Type::Long))
            }
            Self::Integers { symbolic: true } => Type::Of(
                ["c10", "ArrayRef"],
                Box::new(Type::Class(["c10", "SymInt"])),
            ),
        }
    }
}

/// The symbol of `at::_ops::{operator}::call`; an operator's name there ends with its overload's.
pub(crate) fn symbol(operator: &str, arguments: &[Argument]) -> String {
    if cfg!(windows) {
        microsoft(operator, arguments)
    } else {
        itanium(operator, arguments)
    }
}

fn itanium(operator: &str, arguments: &[Argument]) -> String {
    let mut names = Itanium(["at", "_ops", "operator"].map(str::to_owned).into());
    let types: String = arguments
        .iter()
        .map(|argument| names.of(&argument.in_cpp()))
        .collect();
    format!("_ZN2at4_ops{}{operator}4callE{types}", operator.len())
}

fn microsoft(operator: &str, arguments: &[Argument]) -> String {
    let is_written = arguments.iter().any(Argument::is_written);
    let result = if is_written {
        "AEAVTensor@3@"
    } else {
        "?AVTensor@3@"
    };
    let names = ["call", operator, "_ops", "at", "Tensor"].map(str::to_owned);
    let mut names = Microsoft {
        names: names.into(),
        parameters: Vec::new(),
    };
    let types: String = arguments
        .iter()
        .map(|argument| names.parameter(&argument.in_cpp()))
        .collect();
    format!("?call@{operator}@_ops@at@@SA{result}{types}@Z")
}

/// Names as in the Itanium C++ ABI. What has been named is abbreviated by its position.
struct Itanium(Vec<String>);

impl Itanium {
    fn of(&mut self, of: &Type) -> String {
        match of {
            Type::Long => "l".to_owned(),
            Type::Bool => "b".to_owned(),
            _ => self.once(format!("{of:?}"), |names| match of {
                Type::Const(of) => format!("K{}", names.of(of)),
                Type::Reference(of) => format!("R{}", names.of(of)),
                Type::Of(path @ ["std", _], of) => {
                    format!("{}I{}E", names.path(path), names.of(of))
                }
                Type::Of(path, of) => format!("N{}I{}EE", names.path(path), names.of(of)),
                Type::Class([space, name]) => {
                    format!("N{}{}{name}E", names.space(space), name.len())
                }
                Type::Long | Type::Bool => String::new(),
            }),
        }
    }

    fn path(&mut self, path: &[&str; 2]) -> String {
        let [space, name] = path;
        self.once(path.join("::"), |names| {
            format!("{}{}{name}", names.space(space), name.len())
        })
    }

    fn space(&mut self, space: &str) -> String {
        match space {
            "std" => "St".to_owned(),
            _ => self.once(space.to_owned(), |_| format!("{}{space}", space.len())),
        }
    }

    /// The abbreviation for `what`, or its name, which is abbreviated from then on.
    fn once(&mut self, what: String, name: impl FnOnce(&mut Self) -> String) -> String {
        if let Some(position) = self.0.iter().position(|named| *named == what) {
            let digit = |position| {
                char::from_digit(position, 36)
                    .unwrap_or('_')
                    .to_ascii_uppercase()
            };
            let digits = (position as u32)
                .checked_sub(1)
                .map(digit)
                .map(String::from);
            return format!("S{}_", digits.unwrap_or_default());
        }
        let name = name(self);
        self.0.push(what);
        name
    }
}

/// Names as Microsoft's compiler gives them: what was named, be it a name or the type of a parameter, is a digit.
struct Microsoft {
    names: Vec<String>,
    parameters: Vec<String>,
}

impl Microsoft {
    fn parameter(&mut self, of: &Type) -> String {
        let text = self.of(of);
        let repeated = format!("{of:?}");
        match self
            .parameters
            .iter()
            .position(|parameter| *parameter == repeated)
        {
            Some(position) => position.to_string(),
            None => {
                self.parameters.push(repeated);
                text
            }
        }
    }

    fn of(&mut self, of: &Type) -> String {
        match of {
            Type::Long => "_J".to_owned(),
            Type::Bool => "_N".to_owned(),
            Type::Const(of) => self.of(of),
            Type::Reference(of) => {
                let constant = if matches!(**of, Type::Const(_)) {
                    'B'
                } else {
                    'A'
                };
                format!("AE{constant}{}", self.of(of))
            }
            Type::Class([space, name]) => format!("V{}{}@", self.name(name), self.name(space)),
            Type::Of([space, name], of) => {
                // The names in a template are counted anew.
                let inner = Self {
                    names: vec![name.to_string()],
                    parameters: Vec::new(),
                }
                .of(of);
                format!(
                    "V{}{}@",
                    self.name(&format!("?${name}@{inner}@")),
                    self.name(space)
                )
            }
        }
    }

    fn name(&mut self, name: &str) -> String {
        if let Some(position) = self.names.iter().position(|named| named == name) {
            return position.to_string();
        }
        self.names.push(name.to_owned());
        if name.starts_with("?$") {
            name.to_owned()
        } else {
            format!("{name}@")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::{arguments, microsoft, symbol};
    use crate::library::Interface;

    /// The codes and the C++ name of each operator with a `Scalar` and one tensor as its result.
    fn with_scalars() -> impl Iterator<Item = (&'static str, String)> {
        let mut head = "";
        let lines = include_str!("../../operators.txt")
            .lines()
            .map(move |line| {
                let (start, names) = line.split_once(':').unwrap_or((head, line));
                head = start;
                (start, names)
            });
        let lines = lines.filter_map(|(head, names)| Some((head.strip_suffix(" 1")?, names)));
        let with_scalars = lines.filter(|(codes, _)| codes.contains(['S', '{']));
        with_scalars.flat_map(|(codes, names)| {
            let operators = names
                .split_whitespace()
                .map(|name| name.split_once('=').map_or(name, |(_, of)| of));
            operators.map(move |operator| (codes, operator.replace('.', "_")))
        })
    }

    #[test]
    fn pytorch_exports_each_operator_with_a_scalar() {
        let torch = Interface::get().unwrap();
        let named = with_scalars()
            .filter_map(|(codes, operator)| Some(symbol(&operator, &arguments(codes)?)));
        let (found, missing): (Vec<_>, Vec<_>) =
            named.partition(|symbol| torch.cpp(&CString::new(symbol.as_str()).unwrap()).is_ok());
        assert_eq!(missing, Vec::<String>::new());
        assert!(found.len() > 300, "{}", found.len());
    }

    #[test]
    fn names_on_windows_are_those_of_the_library_there() {
        // All that the table has were found in torch_cpu.dll 2.13.0; these show each rule.
        for (operator, codes, expected) in [
            ("mul_Scalar", "TS", "?AVTensor@3@AEBV43@AEBVScalar@c10@@@Z"),
            (
                "add__Tensor",
                "&TT{1}",
                "AEAVTensor@3@AEAV43@AEBV43@AEBVScalar@c10@@@Z",
            ),
            (
                "clamp",
                "TS?S?",
                "?AVTensor@3@AEBV43@AEBV?$optional@VScalar@c10@@@std@@1@Z",
            ),
            (
                "full_out",
                "NS>T",
                "AEAVTensor@3@V?$ArrayRef@VSymInt@c10@@@c10@@AEBVScalar@6@AEAV43@@Z",
            ),
            (
                "norm_ScalarOpt_dim",
                "TS?Ab",
                "?AVTensor@3@AEBV43@AEBV?$optional@VScalar@c10@@@std@@V?$ArrayRef@_J@c10@@_N@Z",
            ),
        ] {
            let name = microsoft(operator, &arguments(codes).unwrap());
            assert_eq!(name, format!("?call@{operator}@_ops@at@@SA{expected}"));
        }
    }
}

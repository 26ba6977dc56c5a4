//! Setters of options.

/// Methods that set one field each and return the options: by value, or by reference.
///
/// ```text
/// setters! {
///     /// The documentation.
///     name(value: Type) => field = expression;
/// }
/// ```
macro_rules! setters {
    (by reference;
        $($(#[$about:meta])* $name:ident($value:ident: $type:ty) => $($field:ident).+ = $set:expr;)*
    ) => {
        $($(#[$about])*
        pub fn $name(&mut self, $value: $type) -> &mut Self {
            self.$($field).+ = $set;
            self
        })*
    };
    ($($(#[$about:meta])* $name:ident($value:ident: $type:ty) => $($field:ident).+ = $set:expr;)*) => {
        $($(#[$about])*
        pub fn $name(mut self, $value: $type) -> Self {
            self.$($field).+ = $set;
            self
        })*
    };
}
pub(crate) use setters;

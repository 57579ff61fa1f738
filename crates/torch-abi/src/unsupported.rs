//! What tch has beyond operators, and nothing here needs: TorchScript, archives, pictures, C++'s optimizers. tch compiles
//! against these functions; a call of one is an error.

use std::ffi::{c_char, c_int};

use crate::{C_tensor, or_default, or_null};

/// An optimizer of C++.
pub enum C_optimizer {}
/// A value of TorchScript.
pub enum CIValue {}
/// A module of TorchScript.
pub enum CModule_ {}

fn error<T>(function: &str) -> crate::Result<T> {
    Err(format!(
        "`{function}` of tch is not there without C++: PyTorch's C interface has nothing like it"
    ))
}

/// Functions with these parameters, of whichever types.
macro_rules! unsupported {
    ($(($($parameter:ident)*) $kind:ident $result:ty: $($name:ident)*;)*) => {
        $(unsupported!(@each ($($parameter)*) $kind $result: $($name)*);)*
    };
    (@each $parameters:tt $kind:ident $result:ty: $($name:ident)*) => {
        $(unsupported!(@one $parameters $kind $result: $name);)*
    };
    (@one ($($parameter:ident)*) $kind:ident $result:ty: $name:ident) => {
        #[doc = "Not supported."]
        pub unsafe fn $name($($parameter: impl Sized),*) -> $result {
            $(let _ = $parameter;)*
            $kind(|| error(stringify!($name)))
        }
    };
}

unsupported! {
    () or_default (): at_autocast_clear_cache;
    () or_null *mut CIValue: ati_none;
    () or_default bool: at_context_has_openmp at_context_has_mkl at_context_has_lapack at_context_has_mkldnn
        at_context_has_magma at_context_has_cudart at_context_has_cusolver at_context_has_ipu at_context_has_xla
        at_context_has_lazy at_context_has_mps atm_fuser_cuda_is_enabled atm_get_tensor_expr_fuser_enabled;
    () or_default c_int: at_autocast_decrement_nesting at_autocast_increment_nesting at_autocast_is_enabled
        atm_get_profiling_mode atc_cudnn_is_available atc_user_enabled_cudnn;
    () or_default i64: at_context_version_cudnn at_context_version_cudart;
    (a) or_default (): at_print at_set_qengine at_set_graph_executor_optimize ato_zero_grad ato_step ato_free
        ati_free atm_eval atm_train atm_free atm_set_profiling_mode atm_fuser_cuda_set_enabled
        atm_set_tensor_expr_fuser_enabled atc_set_user_enabled_cudnn atc_set_benchmark_cudnn;
    (a) or_null *mut CIValue: ati_bool ati_int ati_double ati_tensor ati_string ati_device ati_clone;
    (a) or_null *mut CModule_: atm_load;
    (a) or_null *mut C_tensor: at_load at_load_from_stream at_load_image ati_to_tensor;
    (a) or_null *mut c_char: ati_to_string;
    (a) or_default c_int: at_autocast_set_enabled ati_tag ati_to_bool ati_length ati_tuple_length;
    (a) or_default f64: ati_to_double;
    (a) or_default i64: ati_to_int;
    (a b) or_default (): at_save at_save_to_stream ato_set_learning_rate ato_set_momentum ato_set_weight_decay
        atm_save;
    (a b) or_null *mut CIValue: ati_tuple ati_generic_list ati_generic_dict ati_int_list ati_double_list
        ati_bool_list ati_string_list ati_tensor_list ati_object_getattr_;
    (a b) or_null *mut CModule_: atm_load_on_device atm_load_str;
    (a b) or_null *mut C_tensor: at_load_image_from_memory;
    (a b) or_null *mut c_char: at_to_string;
    (a b) or_default c_int: at_save_image;
    (a b c) or_default (): at__amp_non_finite_check_and_unscale at_loadz_callback at_load_callback
        ato_add_parameters ato_set_learning_rate_group ato_set_momentum_group ato_set_weight_decay_group
        ati_to_tuple ati_to_generic_list ati_to_generic_dict ati_to_int_list ati_to_double_list ati_to_bool_list
        ati_to_tensor_list atm_named_parameters;
    (a b c) or_null *mut CIValue: atm_forward_;
    (a b c) or_null *mut CModule_: atm_load_str_on_device atm_create_for_tracing;
    (a b c) or_null *mut C_tensor: at_resize_image atm_forward;
    (a b c d) or_default (): at_save_multi at_save_multi_to_stream at_loadz_callback_with_device
        at_load_callback_with_device atm_to atm_end_tracing;
    (a b c d) or_null *mut CIValue: ati_object_method_ atm_method_ atm_create_class_;
    (a b c d) or_null *mut C_tensor: atm_method;
    (a b c d e) or_default (): at_load_from_stream_callback;
    (a b c d e) or_null *mut C_optimizer: ato_sgd;
    (a b c d e f) or_null *mut C_optimizer: ato_adam ato_adamw ato_rms_prop;
}

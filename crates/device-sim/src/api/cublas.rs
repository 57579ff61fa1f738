//! cuBLAS and cuBLASLt: matrix products that compute nothing, but may read behind their operands.
//!
//! The names are the ones that PyTorch's libraries import. A product takes the
//! time of a kernel on the stream of its handle.

use super::handles::{self, export_kernels};
use super::{Out, export, export_nothing};
use crate::status::Status;

/// The result of `cublasGetVersion` and `cublasLtGetVersion`: 13.1.0.
const VERSION: u64 = 130_100;

/// `cublasLtMatmulHeuristicResult_t`
#[repr(C)]
struct HeuristicResult {
    algorithm: [u64; 8],
    workspace_bytes: u64,
    state: Status,
    waves: f32,
    reserved: [i32; 4],
}

/// An operand: matrices in columns, with sizes in elements.
struct Operand {
    address: u64,
    /// Bytes.
    element: u64,
    rows: i32,
    columns: i32,
    leading: i32,
    stride: i64,
    batches: i32,
}

impl Operand {
    /// One that has `rows` and `columns` once it is transposed, if it is (`CUBLAS_OP_N` is 0).
    fn new(
        address: u64,
        element: u64,
        transposed: i32,
        rows: i32,
        columns: i32,
        leading: i32,
    ) -> Self {
        let (rows, columns) = if transposed == 0 {
            (rows, columns)
        } else {
            (columns, rows)
        };
        Self {
            address,
            element,
            rows,
            columns,
            leading,
            stride: 0,
            batches: 1,
        }
    }

    fn batched(self, stride: i64, batches: i32) -> Self {
        Self {
            stride,
            batches,
            ..self
        }
    }

    /// The address behind its last element.
    fn end(&self) -> u64 {
        let last = i64::from(self.batches - 1).max(0) * self.stride
            + i64::from(self.columns - 1).max(0) * i64::from(self.leading)
            + i64::from(self.rows);
        self.address
            .saturating_add_signed(last * self.element as i64)
    }
}

/// The size of a `cudaDataType`: 32 bits are the default, and the others are the common ones.
fn element(kind: i32) -> u64 {
    match kind {
        3 | 8 | 28 | 29 => 1, // integers and floating-point numbers of 8 bits
        2 | 14 => 2,          // half precision and bfloat16
        1 | 4 => 8,           // double precision, and pairs of single
        5 => 16,              // pairs of double
        _ => 4,
    }
}

export! {
    fn product(
        engine, handle: u64, transa: i32, transb: i32, m: i32, n: i32, k: i32, _alpha: u64, a: u64, lda: i32, b: u64,
        ldb: i32, _beta: u64, _c: u64, _ldc: i32,
    ) as driver cublasSgemm_v2
    {
        let (a, b) = (Operand::new(a, 4, transa, m, k, lda), Operand::new(b, 4, transb, k, n, ldb));
        handles::launch_reading(engine, handles::stream_of(handle), [a.end(), b.end()])
    }

    fn products(
        engine, handle: u64, transa: i32, transb: i32, m: i32, n: i32, k: i32, _alpha: u64, a: u64, lda: i32,
        stridea: i64, b: u64, ldb: i32, strideb: i64, _beta: u64, _c: u64, _ldc: i32, _stridec: i64, batches: i32,
    ) as driver cublasSgemmStridedBatched
    {
        let a = Operand::new(a, 4, transa, m, k, lda).batched(stridea, batches);
        let b = Operand::new(b, 4, transb, k, n, ldb).batched(strideb, batches);
        handles::launch_reading(engine, handles::stream_of(handle), [a.end(), b.end()])
    }

    fn typed_product(
        engine, handle: u64, transa: i32, transb: i32, m: i32, n: i32, k: i32, _alpha: u64, a: u64, kinda: i32,
        lda: i32, b: u64, kindb: i32, ldb: i32, _beta: u64, _c: u64, _kindc: i32, _ldc: i32, _compute: i32,
        _algorithm: i32,
    ) as driver cublasGemmEx
    {
        let a = Operand::new(a, element(kinda), transa, m, k, lda);
        let b = Operand::new(b, element(kindb), transb, k, n, ldb);
        handles::launch_reading(engine, handles::stream_of(handle), [a.end(), b.end()])
    }

    fn typed_products(
        engine, handle: u64, transa: i32, transb: i32, m: i32, n: i32, k: i32, _alpha: u64, a: u64, kinda: i32,
        lda: i32, stridea: i64, b: u64, kindb: i32, ldb: i32, strideb: i64, _beta: u64, _c: u64, _kindc: i32, _ldc: i32,
        _stridec: i64, batches: i32, _compute: i32, _algorithm: i32,
    ) as driver cublasGemmStridedBatchedEx
    {
        let a = Operand::new(a, element(kinda), transa, m, k, lda).batched(stridea, batches);
        let b = Operand::new(b, element(kindb), transb, k, n, ldb).batched(strideb, batches);
        handles::launch_reading(engine, handles::stream_of(handle), [a.end(), b.end()])
    }

    fn create(engine, handle: Out<u64>) as driver cublasCreate_v2, driver cublasLtCreate {
        handle.set(handles::create(engine))
    }

    fn destroy(engine, handle: u64) as driver cublasDestroy_v2, driver cublasLtDestroy {
        let _ = engine;
        handles::forget(handle);
        Ok(())
    }

    fn set_stream(engine, handle: u64, stream: u64) as driver cublasSetStream_v2 {
        let _ = engine;
        handles::set_stream(handle, stream);
        Ok(())
    }

    fn get_stream(engine, handle: u64, stream: Out<u64>) as driver cublasGetStream_v2 {
        let _ = engine;
        stream.set(handles::stream_of(handle))
    }

    /// `CUBLAS_DEFAULT_MATH` and `CUBLAS_POINTER_MODE_HOST` are both 0.
    fn mode(engine, _handle: u64, mode: Out<i32>) as driver cublasGetMathMode, driver cublasGetPointerMode_v2 {
        let _ = engine;
        mode.set(0)
    }

    fn version(engine, _handle: u64, version: Out<i32>) as driver cublasGetVersion_v2 {
        let _ = engine;
        version.set(VERSION as i32)
    }

    /// Descriptors of operations and layouts, whose contents are ignored.
    fn describe(engine, description: Out<u64>) as driver cublasLtMatmulDescCreate,
        driver cublasLtMatmulPreferenceCreate, driver cublasLtMatrixLayoutCreate
    {
        description.set(handles::create(engine))
    }

    /// Always one algorithm, which needs no workspace.
    fn heuristic(
        engine, _handle: u64, _operation: u64, _a: u64, _b: u64, _c: u64, _d: u64, _preference: u64, wanted: i32,
        results: Out<HeuristicResult>, count: Out<i32>,
    ) as driver cublasLtMatmulAlgoGetHeuristic
    {
        let _ = engine;
        if wanted < 1 {
            return Err(Status(7)); // CUBLAS_STATUS_INVALID_VALUE
        }
        results.set(HeuristicResult {
            algorithm: [0; 8],
            workspace_bytes: 0,
            state: Status::SUCCESS,
            waves: 1.0,
            reserved: [0; 4],
        })?;
        count.set(1)
    }

    fn matmul(
        engine, _handle: u64, _operation: u64, _alpha: u64, _a: u64, _a_layout: u64, _b: u64, _b_layout: u64,
        _beta: u64, _c: u64, _c_layout: u64, _d: u64, _d_layout: u64, _algorithm: u64, _workspace: u64,
        _workspace_bytes: u64, stream: u64,
    ) as driver cublasLtMatmul
    {
        handles::launch(engine, stream)
    }
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the C API decides")]
extern "C" fn cublasLtGetVersion() -> u64 {
    VERSION
}

export_nothing! {
    cublasLtMatmulDescDestroy cublasLtMatmulDescSetAttribute cublasLtMatmulPreferenceDestroy
    cublasLtMatmulPreferenceSetAttribute cublasLtMatrixLayoutDestroy cublasLtMatrixLayoutSetAttribute
    cublasSetMathMode cublasSetPointerMode_v2 cublasSetSmCountTarget cublasSetWorkspace_v2
}

export_kernels! {
    cublasCaxpy_v2 cublasCcopy_v2 cublasCdotc_v2 cublasCdotu_v2 cublasCgelsBatched cublasCgemmBatched
    cublasCgemmStridedBatched cublasCgemm_v2 cublasCgemv_v2 cublasCgeqrfBatched cublasCgerc_v2 cublasCgeru_v2
    cublasCgetrfBatched cublasCgetrsBatched cublasChemm_v2 cublasChemv_v2 cublasCher2_v2 cublasCher2k_v2
    cublasCher_v2 cublasCherk_v2 cublasCrot_v2 cublasCrotg_v2 cublasCscal_v2 cublasCsrot_v2 cublasCsscal_v2
    cublasCswap_v2 cublasCsymm_v2 cublasCsymv_v2 cublasCsyr2_v2 cublasCsyr2k_v2 cublasCsyr_v2 cublasCsyrk_v2
    cublasCtrmm_v2 cublasCtrmv_v2 cublasCtrsmBatched cublasCtrsm_v2 cublasCtrsv_v2 cublasDasum_v2
    cublasDaxpy_v2 cublasDcopy_v2 cublasDdot_v2 cublasDgelsBatched cublasDgemmBatched
    cublasDgemmStridedBatched cublasDgemm_v2 cublasDgemv_v2 cublasDgeqrfBatched cublasDger_v2
    cublasDgetrfBatched cublasDgetrsBatched cublasDnrm2_v2 cublasDotEx cublasDrot_v2 cublasDrotg_v2
    cublasDrotm_v2 cublasDrotmg_v2 cublasDscal_v2 cublasDswap_v2 cublasDsymm_v2 cublasDsymv_v2 cublasDsyr2_v2
    cublasDsyr2k_v2 cublasDsyr_v2 cublasDsyrk_v2 cublasDtrmm_v2 cublasDtrmv_v2 cublasDtrsmBatched
    cublasDtrsm_v2 cublasDtrsv_v2 cublasDzasum_v2 cublasDznrm2_v2
    cublasGetMatrixAsync cublasGetVectorAsync cublasIcamax_v2 cublasIcamin_v2 cublasIdamax_v2 cublasIdamin_v2
    cublasIsamax_v2 cublasIsamin_v2 cublasIzamax_v2 cublasIzamin_v2 cublasSasum_v2 cublasSaxpy_v2
    cublasScasum_v2 cublasScnrm2_v2 cublasScopy_v2 cublasSdot_v2 cublasSetMatrixAsync cublasSetVectorAsync
    cublasSgelsBatched cublasSgemmBatched cublasSgemmEx
    cublasSgemv_v2 cublasSgeqrfBatched cublasSger_v2 cublasSgetrfBatched cublasSgetrsBatched cublasSnrm2_v2
    cublasSrot_v2 cublasSrotg_v2 cublasSrotm_v2 cublasSrotmg_v2 cublasSscal_v2 cublasSswap_v2 cublasSsymm_v2
    cublasSsymv_v2 cublasSsyr2_v2 cublasSsyr2k_v2 cublasSsyr_v2 cublasSsyrk_v2 cublasStrmm_v2 cublasStrmv_v2
    cublasStrsmBatched cublasStrsm_v2 cublasStrsv_v2 cublasZaxpy_v2 cublasZcopy_v2 cublasZdotc_v2
    cublasZdotu_v2 cublasZdrot_v2 cublasZdscal_v2 cublasZgelsBatched cublasZgemmBatched
    cublasZgemmStridedBatched cublasZgemm_v2 cublasZgemv_v2 cublasZgeqrfBatched cublasZgerc_v2 cublasZgeru_v2
    cublasZgetrfBatched cublasZgetrsBatched cublasZhemm_v2 cublasZhemv_v2 cublasZher2_v2 cublasZher2k_v2
    cublasZher_v2 cublasZherk_v2 cublasZrot_v2 cublasZrotg_v2 cublasZscal_v2 cublasZswap_v2 cublasZsymm_v2
    cublasZsymv_v2 cublasZsyr2_v2 cublasZsyr2k_v2 cublasZsyr_v2 cublasZsyrk_v2 cublasZtrmm_v2 cublasZtrmv_v2
    cublasZtrsmBatched cublasZtrsm_v2 cublasZtrsv_v2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operand_ends_behind_its_last_element() {
        // 3 x 5 in columns of 4, of bfloat16; transposed, the same memory is 5 x 3.
        let end = |transposed, rows, columns| {
            Operand::new(1000, element(14), transposed, rows, columns, 4).end()
        };
        assert_eq!((end(0, 3, 5), end(1, 5, 3)), (1000 + 2 * 19, 1000 + 2 * 19));
        let batched = Operand::new(1000, element(0), 0, 3, 5, 4).batched(20, 7);
        assert_eq!(batched.end(), 1000 + 4 * (6 * 20 + 19));
    }
}

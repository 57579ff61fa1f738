//! cuDNN: convolutions and normalisations that compute nothing.
//!
//! PyTorch describes a convolution by "backend descriptors" with attributes, queries
//! the engines that can run it, creates a plan with one, and executes it. Here every
//! description is accepted, there is always one engine, and its plan launches a
//! kernel. Functions that only return a version are left to the real library.

use super::handles::{self, export_kernels};
use super::{Out, export, export_nothing};
use crate::status::Status;

/// `CUDNN_STATUS_NOT_SUPPORTED`
const NOT_SUPPORTED: Status = Status(3000);

/// Supported attributes: see [`get_attribute`].
const HEURISTIC_RESULTS: i32 = 202;
const CONFIGURATION_ENGINE: i32 = 300;
const PLAN_WORKSPACE: i32 = 402;
const OPERATION_GRAPH_ENGINES: i32 = 802;
const ENGINE_INDEX: i32 = 1301;

/// The workspace size of a plan: a common size, so that it appears in traces.
const WORKSPACE_BYTES: i64 = 8 << 20;

/// The seeds of dropout: PyTorch allocates this many bytes for them.
const DROPOUT_STATE_BYTES: u64 = 1 << 20;

export! {
    fn create(engine, handle: Out<u64>) as driver cudnnCreate,
        driver cudnnCreateActivationDescriptor, driver cudnnCreateCTCLossDescriptor,
        driver cudnnCreateConvolutionDescriptor, driver cudnnCreateDropoutDescriptor,
        driver cudnnCreateFilterDescriptor, driver cudnnCreatePoolingDescriptor,
        driver cudnnCreateRNNDataDescriptor, driver cudnnCreateRNNDescriptor,
        driver cudnnCreateSpatialTransformerDescriptor, driver cudnnCreateTensorDescriptor
    {
        handle.set(handles::create(engine))
    }

    fn destroy(engine, handle: u64) as driver cudnnDestroy {
        let _ = engine;
        handles::forget(handle);
        Ok(())
    }

    fn set_stream(engine, handle: u64, stream: u64) as driver cudnnSetStream {
        let _ = engine;
        handles::set_stream(handle, stream);
        Ok(())
    }

    fn get_stream(engine, handle: u64, stream: Out<u64>) as driver cudnnGetStream {
        let _ = engine;
        stream.set(handles::stream_of(handle))
    }

    fn create_backend_descriptor(engine, _kind: i32, descriptor: Out<u64>) as driver cudnnBackendCreateDescriptor {
        descriptor.set(handles::create(engine))
    }

    /// Descriptors that the caller passes to be filled (engines found, the engine
    /// of a configuration) are not changed: all are equal.
    fn get_attribute(
        engine, _descriptor: u64, attribute: i32, _kind: i32, wanted: i64, count: Out<i64>, values: Out<i64>,
    ) as driver cudnnBackendGetAttribute
    {
        let _ = engine;
        let (available, value) = match attribute {
            HEURISTIC_RESULTS | CONFIGURATION_ENGINE => (1, None),
            PLAN_WORKSPACE => (1, Some(WORKSPACE_BYTES)),
            OPERATION_GRAPH_ENGINES => (1, Some(1)),
            ENGINE_INDEX => (1, Some(0)),
            _ => (0, None),
        };
        count.set_if_wanted(available);
        match value {
            Some(value) if wanted > 0 => values.set(value),
            _ => Ok(()),
        }
    }

    fn dropout_state_size(engine, _handle: u64, size: Out<u64>) as driver cudnnDropoutGetStatesSize {
        let _ = engine;
        size.set(DROPOUT_STATE_BYTES)
    }

    fn normalization_forward_workspace(
        engine, _handle: u64, _mode: i32, _operations: i32, _x: u64, _z: u64, _y: u64, _scale: u64, _activation: u64,
        size: Out<u64>,
    ) as driver cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize
    {
        let _ = engine;
        size.set(0)
    }

    fn normalization_backward_workspace(
        engine, _handle: u64, _mode: i32, _operations: i32, _x: u64, _y: u64, _dy: u64, _dz: u64, _dx: u64,
        _scale: u64, _activation: u64, size: Out<u64>,
    ) as driver cudnnGetBatchNormalizationBackwardExWorkspaceSize
    {
        let _ = engine;
        size.set(0)
    }

    fn normalization_reserve(
        engine, _handle: u64, _mode: i32, _operations: i32, _activation: u64, _x: u64, size: Out<u64>,
    ) as driver cudnnGetBatchNormalizationTrainingExReserveSpaceSize
    {
        let _ = engine;
        size.set(0)
    }

    /// Recurrent networks, CTC and the interfaces of older versions.
    fn unsupported(engine) as driver cudnnGetRNNTempSpaceSizes, driver cudnnGetRNNWeightParams,
        driver cudnnGetRNNWeightSpaceSize, driver cudnnRNNForward, driver cudnnRNNBackwardData_v8,
        driver cudnnRNNBackwardWeights_v8, driver cudnnCTCLoss, driver cudnnCTCLoss_v8,
        driver cudnnGetCTCLossWorkspaceSize, driver cudnnGetCTCLossWorkspaceSize_v8,
        driver cudnnFindConvolutionForwardAlgorithmEx, driver cudnnFindConvolutionBackwardDataAlgorithmEx,
        driver cudnnFindConvolutionBackwardFilterAlgorithmEx, driver cudnnGetConvolutionForwardAlgorithm_v7,
        driver cudnnGetConvolutionBackwardDataAlgorithm_v7, driver cudnnGetConvolutionBackwardFilterAlgorithm_v7,
        driver cudnnGetConvolutionForwardWorkspaceSize, driver cudnnGetConvolutionBackwardDataWorkspaceSize,
        driver cudnnGetConvolutionBackwardFilterWorkspaceSize, driver cudnnGetFilterNdDescriptor,
        driver cudnnGetTensorNdDescriptor, driver cudnnRestoreDropoutDescriptor
    {
        let _ = engine;
        Err(NOT_SUPPORTED)
    }
}

export_nothing! {
    cudnnBackendDestroyDescriptor cudnnBackendFinalize cudnnBackendSetAttribute
    cudnnDestroyActivationDescriptor cudnnDestroyCTCLossDescriptor cudnnDestroyConvolutionDescriptor
    cudnnDestroyDropoutDescriptor cudnnDestroyFilterDescriptor cudnnDestroyPoolingDescriptor
    cudnnDestroyRNNDataDescriptor cudnnDestroyRNNDescriptor cudnnDestroySpatialTransformerDescriptor
    cudnnDestroyTensorDescriptor
    cudnnSetActivationDescriptor cudnnSetCTCLossDescriptorEx cudnnSetCTCLossDescriptor_v9
    cudnnSetConvolutionGroupCount cudnnSetConvolutionMathType cudnnSetConvolutionNdDescriptor
    cudnnSetDropoutDescriptor cudnnSetFilterNdDescriptor cudnnSetPooling2dDescriptor
    cudnnSetRNNDataDescriptor cudnnSetRNNDescriptor_v8 cudnnSetSpatialTransformerNdDescriptor
    cudnnSetTensorNdDescriptor
}

export_kernels! {
    cudnnBackendExecute
    cudnnBatchNormalizationForwardTrainingEx cudnnBatchNormalizationForwardInference
    cudnnBatchNormalizationBackwardEx
    cudnnConvolutionForward cudnnConvolutionBackwardData cudnnConvolutionBackwardFilter
    cudnnConvolutionBiasActivationForward cudnnPoolingForward
    cudnnSpatialTfGridGeneratorForward cudnnSpatialTfGridGeneratorBackward
    cudnnSpatialTfSamplerForward cudnnSpatialTfSamplerBackward
}

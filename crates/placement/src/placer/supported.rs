//! Which tensors can be placed: dense ones of the types that tch supports. Others are refused here by name,
//! because later operations on them would panic.

use tch::Tensor;
use torch_ext::Error;

use super::{PlaceError, torch};

/// Refuses tensors without storage, or with an unsupported layout or type.
pub(crate) fn check_supported(name: &str, tensor: &Tensor) -> Result<(), PlaceError> {
    let refuse = |why: &str| {
        Err(PlaceError::Torch {
            tensor: name.to_owned(),
            source: Error::InvalidArgument(why.to_owned()),
        })
    };
    if !tensor.defined() {
        return refuse("the tensor is undefined");
    }
    tensor.f_kind().map_err(|error| torch(name, error))?;
    let sparse_dimensions = tensor.f_sparse_dim().map_err(|error| torch(name, error))?;
    if sparse_dimensions > 0 || tensor.is_sparse() || tensor.is_mkldnn() {
        return refuse("only dense tensors can be placed: use `to_dense()`, or place its parts");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use crate::transfer::policy::Policy;
    use crate::{PlaceError, Placer};

    use super::*;

    fn placer() -> Placer {
        Placer::new(Device::Cpu, Policy::default()).unwrap()
    }

    fn dense() -> Tensor {
        Tensor::eye(3, (Kind::Float, Device::Cpu))
    }

    #[test]
    fn what_is_not_dense_is_refused_by_its_path_and_nothing_panics() {
        let odd = [
            dense().to_sparse(None, None::<&[i64]>, None),
            dense().to_sparse_csr(None),
            dense().to_sparse_csc(None),
            dense().to_mkldnn(),
            Tensor::new(),
        ];
        for tensor in odd {
            let batch = vec![vec![dense()], vec![tensor.shallow_clone()]];
            let error = placer().batch(batch).unwrap_err();
            assert!(matches!(error, PlaceError::Torch { .. }));
            assert!(error.to_string().starts_with("`batch.1.0`: "), "{error}");
            let mut weight = tensor.shallow_clone();
            let error = placer().move_in_place([("w", &mut weight)]).unwrap_err();
            assert!(error.to_string().starts_with("`w`: "), "{error}");
            assert!(placer().weight("w", &tensor, None).is_err());
        }
    }

    #[test]
    fn odd_dense_tensors_are_placed() {
        let complex = Tensor::complex(&dense(), &dense());
        let scale = Tensor::quantize_per_tensor(&dense(), 0.1, 3, Kind::QInt8);
        let empty = Tensor::zeros([0, 3], (Kind::Half, Device::Cpu));
        let scalar = Tensor::from(true);
        let strided = dense().narrow(1, 1, 1);
        let expanded = Tensor::from(1.5).expand([4, 4], false);
        let negative = complex.conj().imag();
        for tensor in [complex, scale, empty, scalar, strided, expanded, negative] {
            let placed = placer().batch(tensor.shallow_clone()).unwrap();
            assert_eq!(
                (placed.size(), placed.kind()),
                (tensor.size(), tensor.kind())
            );
            assert!(placed.is_contiguous() && placed.equal(&tensor));
        }
        let nothing = Some(Vec::<Tensor>::new());
        assert!(placer().batch(nothing).unwrap().unwrap().is_empty());
    }

    #[test]
    fn a_batch_is_refilled_in_its_own_order() {
        let batch = vec![
            Some(vec![dense() * 2, dense() * 3]),
            Some(vec![dense() * 4, dense() * 5]),
        ];
        let batch = placer().batch(batch).unwrap();
        let first = batch.into_iter().flatten().flatten();
        let first = first.map(|tensor| tensor.double_value(&[0, 0]));
        assert_eq!(first.collect::<Vec<_>>(), [2.0, 3.0, 4.0, 5.0]);
    }
}

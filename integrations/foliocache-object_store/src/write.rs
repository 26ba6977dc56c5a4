//! Writes go to the inner store. What is cached of their objects goes, whatever becomes of them.

use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, PutPayload, PutResult, Result, UploadPart};
use std::fmt;
use std::sync::Arc;

use crate::read::Shared;

/// A change of an object that is under way. Nothing of the object is believed that was asked before it, or beside it: also if its
/// future is dropped, when nobody knows whether it was done.
pub(crate) struct Change<'a, S> {
    shared: &'a Shared<S>,
    paths: Vec<&'a Path>,
}

impl<'a, S> Change<'a, S> {
    pub(crate) fn of(shared: &'a Shared<S>, paths: impl Into<Vec<&'a Path>>) -> Self {
        let paths = paths.into();
        paths.iter().for_each(|path| shared.chunks.forget(path));
        Self { shared, paths }
    }
}

impl<S> Drop for Change<'_, S> {
    fn drop(&mut self) {
        let paths = self.paths.iter();
        paths.for_each(|path| self.shared.chunks.forget(path));
    }
}

/// An upload in parts. The object changes at its end.
pub(crate) struct Upload<S> {
    pub(crate) inner: Box<dyn MultipartUpload>,
    pub(crate) path: Path,
    pub(crate) shared: Arc<Shared<S>>,
}

#[async_trait::async_trait]
impl<S: ObjectStore> MultipartUpload for Upload<S> {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.inner.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let _change = Change::of(&self.shared, [&self.path]);
        self.inner.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}

impl<S> fmt::Debug for Upload<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload")
            .field("inner", &self.inner)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

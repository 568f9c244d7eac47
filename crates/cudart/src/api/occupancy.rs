//! How many blocks of a kernel fit.

use core::ffi::c_void;

use super::function::function;
use crate::prelude::*;

entry! {
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        numBlocks: *mut i32, func: *const c_void, blockSize: i32, dynamicSMemSize: usize,
    ) {
        let function = function(func)?;
        cu!(cuOccupancyMaxActiveBlocksPerMultiprocessor(numBlocks, function, blockSize, dynamicSMemSize));
        Ok(())
    }

    cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        numBlocks: *mut i32, func: *const c_void, blockSize: i32, dynamicSMemSize: usize, flags: u32,
    ) {
        let function = function(func)?;
        cu!(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
            numBlocks, function, blockSize, dynamicSMemSize, flags
        ));
        Ok(())
    }

    cudaOccupancyAvailableDynamicSMemPerBlock(
        dynamicSmemSize: *mut usize, func: *const c_void, numBlocks: i32, blockSize: i32,
    ) {
        let function = function(func)?;
        cu!(cuOccupancyAvailableDynamicSMemPerBlock(dynamicSmemSize, function, numBlocks, blockSize));
        Ok(())
    }

    cudaOccupancyMaxActiveClusters(
        numClusters: *mut i32, func: *const c_void, launchConfig: *const cudaLaunchConfig_t,
    ) {
        refuse(launchConfig.is_null(), cudaErrorInvalidValue)?;
        let function = function(func)?;
        let configuration = configuration(&*launchConfig)?;
        cu!(cuOccupancyMaxActiveClusters(numClusters, function, &configuration));
        Ok(())
    }

    cudaOccupancyMaxPotentialClusterSize(
        clusterSize: *mut i32, func: *const c_void, launchConfig: *const cudaLaunchConfig_t,
    ) {
        refuse(launchConfig.is_null(), cudaErrorInvalidValue)?;
        let function = function(func)?;
        let configuration = configuration(&*launchConfig)?;
        cu!(cuOccupancyMaxPotentialClusterSize(clusterSize, function, &configuration));
        Ok(())
    }
}

fn configuration(given: &cudaLaunchConfig_t) -> Result<CUlaunchConfig> {
    Ok(CUlaunchConfig {
        gridDimX: given.gridDim.x,
        gridDimY: given.gridDim.y,
        gridDimZ: given.gridDim.z,
        blockDimX: given.blockDim.x,
        blockDimY: given.blockDim.y,
        blockDimZ: given.blockDim.z,
        sharedMemBytes: u32::try_from(given.dynamicSmemBytes).map_err(|_| cudaErrorInvalidValue)?,
        hStream: given.stream,
        attrs: given.attrs.cast(),
        numAttrs: given.numAttrs,
    })
}

//! Turns the interfaces of the kubelet into Rust. protox reads them: no protoc is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = [
        "pluginregistration.proto",
        "dra_v1.proto",
        "dra_v1beta1.proto",
        "dra_health_v1alpha1.proto",
        "podresources_v1.proto",
        "deviceplugin_v1beta1.proto",
    ];
    println!("cargo::rerun-if-changed=proto");
    let read = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure()
        .build_transport(false)
        .compile_fds(read)?;
    Ok(())
}

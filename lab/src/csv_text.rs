//! CSV text for other programs.

/// CSV text (RFC 4180, with plain line ends).
pub(crate) fn csv<'a>(rows: impl IntoIterator<Item = Vec<&'a str>>) -> String {
    let mut writer = csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
    for row in rows {
        writer.write_record(&row).expect("memory can be written to");
    }
    let bytes = writer.into_inner().expect("memory can be written to");
    String::from_utf8(bytes).expect("text stays text")
}

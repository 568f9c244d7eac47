//! A small tree of XML elements, read and written by quick-xml: enough to change a domain and leave the rest as it was.

use std::io;

use divvy_model::{Code, Fault};
use quick_xml::events::{BytesDecl, BytesEnd, BytesStart, BytesText, Event};
use quick_xml::{Reader, Writer};

/// No honest document is deeper.
const DEEPEST: usize = 64;

/// An element.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// Its name, with a prefix where it has one.
    pub name: String,
    /// Its attributes in order.
    pub attributes: Vec<(String, String)>,
    /// What is in it.
    pub children: Vec<Child>,
}

/// What is in an element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Child {
    /// Another one.
    Element(Element),
    /// Text.
    Text(String),
    /// A comment.
    Comment(String),
}

impl Element {
    /// An empty one.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }

    /// The same with an attribute.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.set(name, value);
        self
    }

    /// The same with text.
    #[must_use]
    pub fn text(mut self, text: impl ToString) -> Self {
        self.children.push(Child::Text(text.to_string()));
        self
    }

    /// The same with another in it.
    #[must_use]
    pub fn child(mut self, child: Self) -> Self {
        self.children.push(Child::Element(child));
        self
    }

    /// Sets an attribute.
    pub fn set(&mut self, name: &str, value: impl ToString) {
        let value = value.to_string();
        match self.attributes.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = value,
            None => self.attributes.push((name.to_owned(), value)),
        }
    }

    /// An attribute.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut attributes = self.attributes.iter();
        attributes
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// The elements in it.
    pub fn elements(&self) -> impl Iterator<Item = &Self> {
        self.children.iter().filter_map(|child| match child {
            Child::Element(element) => Some(element),
            Child::Text(_) | Child::Comment(_) => None,
        })
    }

    /// The first element in it of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Self> {
        self.elements().find(|element| element.name == name)
    }

    /// The first element in it of this name, made at its end where there is none.
    pub fn entry(&mut self, name: &str) -> &mut Self {
        let is_it = |child: &Child| matches!(child, Child::Element(element) if element.name == name);
        let at = match self.children.iter().position(is_it) {
            Some(at) => at,
            None => {
                self.children.push(Child::Element(Self::new(name)));
                self.children.len() - 1
            }
        };
        match &mut self.children[at] {
            Child::Element(element) => element,
            Child::Text(_) | Child::Comment(_) => unreachable!("an element was found or made"),
        }
    }

    /// Puts an element in the place of those of its name, or at the end.
    pub fn put(&mut self, element: Self) {
        let name = element.name.clone();
        *self.entry(&name) = element;
    }

    /// Takes the elements out that are so.
    pub fn remove(&mut self, is_so: impl Fn(&Self) -> bool) {
        self.children
            .retain(|child| !matches!(child, Child::Element(element) if is_so(element)));
    }

    /// Reads a document.
    ///
    /// # Errors
    /// [`Code::Usage`] for what is not well formed, declares entities, or is too deep.
    pub fn read(text: &str) -> Result<Self, Fault> {
        let wrong = |why: String| {
            Fault::new(Code::Usage, "this is no XML document of a domain")
                .cause(why)
                .hint("`virsh dumpxml --inactive NAME` prints one")
        };
        let mut reader = Reader::from_str(text);
        let mut open: Vec<Self> = Vec::new();
        let mut whole: Option<Self> = None;
        loop {
            let event = reader.read_event().map_err(|error| wrong(error.to_string()))?;
            let ended = match event {
                Event::Start(start) => {
                    if open.len() >= DEEPEST {
                        return Err(wrong("its elements are too deep".into()));
                    }
                    open.push(started(&start).map_err(wrong)?);
                    None
                }
                Event::Empty(start) => Some(started(&start).map_err(wrong)?),
                Event::End(_) => open.pop(),
                Event::Text(text) => {
                    let text = text.unescape().map_err(|error| wrong(error.to_string()))?;
                    if let Some(top) = open.last_mut().filter(|_| !text.trim().is_empty()) {
                        top.children.push(Child::Text(text.into_owned()));
                    }
                    None
                }
                Event::CData(data) => {
                    let text = String::from_utf8_lossy(&data).into_owned();
                    if let Some(top) = open.last_mut() {
                        top.children.push(Child::Text(text));
                    }
                    None
                }
                Event::Comment(comment) => {
                    let text = String::from_utf8_lossy(&comment).into_owned();
                    if let Some(top) = open.last_mut() {
                        top.children.push(Child::Comment(text));
                    }
                    None
                }
                Event::DocType(_) => return Err(wrong("it declares a document type".into())),
                Event::Decl(_) | Event::PI(_) => None,
                Event::Eof => break,
            };
            if let Some(element) = ended {
                match open.last_mut() {
                    Some(top) => top.children.push(Child::Element(element)),
                    None => whole = Some(element),
                }
            }
        }
        match whole {
            Some(element) if open.is_empty() => Ok(element),
            _ => Err(wrong("it has no end".into())),
        }
    }

    /// The document.
    #[must_use]
    pub fn written(&self) -> String {
        let mut writer = Writer::new_with_indent(Vec::new(), b' ', 2);
        let written = writer
            .write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))
            .and_then(|()| self.write(&mut writer));
        // Memory takes every write.
        debug_assert!(written.is_ok());
        String::from_utf8_lossy(&writer.into_inner()).into_owned() + "\n"
    }

    fn write(&self, writer: &mut Writer<Vec<u8>>) -> io::Result<()> {
        let mut start = BytesStart::new(self.name.as_str());
        for (name, value) in &self.attributes {
            start.push_attribute((name.as_str(), value.as_str()));
        }
        if self.children.is_empty() {
            return writer.write_event(Event::Empty(start));
        }
        writer.write_event(Event::Start(start))?;
        for child in &self.children {
            match child {
                Child::Element(element) => element.write(writer)?,
                Child::Text(text) => writer.write_event(Event::Text(BytesText::new(text)))?,
                Child::Comment(text) => {
                    writer.write_event(Event::Comment(BytesText::from_escaped(text.as_str())))?;
                }
            }
        }
        writer.write_event(Event::End(BytesEnd::new(self.name.as_str())))
    }
}

fn started(start: &BytesStart<'_>) -> Result<Element, String> {
    let mut element = Element::new(&String::from_utf8_lossy(start.name().as_ref()));
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|error| error.to_string())?;
        let value = attribute.unescape_value().map_err(|error| error.to_string())?;
        element.attributes.push((
            String::from_utf8_lossy(attribute.key.as_ref()).into_owned(),
            value.into_owned(),
        ));
    }
    Ok(element)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_written_again() {
        let text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<domain xmlns:q=\"urn\">\n  <name>a &amp; b</name>\n  <!-- why -->\n  \
                    <q:x value=\"&quot;1&quot;\"/>\n</domain>\n";
        let read = Element::read(text).expect("it is one");
        assert_eq!(read.written(), text);
        for broken in [
            "",
            "<a>",
            "<a></b>",
            "<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>",
            "<a>&b;</a>",
        ] {
            assert_eq!(Element::read(broken).expect_err(broken).code, Code::Usage);
        }
        assert!(Element::read(&"<a>".repeat(1000)).is_err());
    }
}

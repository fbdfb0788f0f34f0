// Search needs a Worker, and browsers start none for a page opened from a folder. There, this class runs the
// worker's script in a hidden frame instead. Served over HTTP, it does nothing.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.body.appendChild(document.createElement("iframe"));
      frame.hidden = true;
      this.inner = frame.contentWindow;
      this.inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}));
      const load = source => new Promise((done, failed) => {
        const script = this.inner.document.createElement("script");
        Object.assign(script, {src: source, onload: done, onerror: failed});
        this.inner.document.body.appendChild(script);
      });
      this.inner.importScripts = (...sources) => sources.reduce((before, one) => before.then(() => load(one)), Promise.resolve());
      this.ready = load(url);
    }

    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", {data})));
    }
  };
}

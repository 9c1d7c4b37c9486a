// Before the page is drawn, so that it does not flash.
const stored = localStorage.getItem("theme");
if (stored) document.documentElement.dataset.theme = stored;

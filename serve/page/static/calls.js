// The same question from elsewhere: as a curl command and as a Python program.

import { $ } from "./elements.js";
import { address, hasToken } from "./server.js";

export const query = (settings) => new URLSearchParams(settings).toString();

export function show(model, picture, settings) {
  const header = hasToken() ? `-H "Authorization: Bearer $ROBUST_SERVE_TOKEN" ` : "";
  $("curl").textContent = `curl ${header}-T ${picture.fileName} '${address}/models/${model.name}/invoke?${query(settings)}'`;
  const { mode, ...rest } = settings;
  const given = Object.entries(rest).map(([name, value]) => `${name}=${value}`).join(", ");
  const token = hasToken() ? `, token=os.environ["ROBUST_SERVE_TOKEN"]` : "";
  $("python").textContent = [
    ...(token ? ["import os", ""] : []),
    "from robustinfer import Client",
    "",
    `with Client("${address}", model="${model.name}"${token}) as client:`,
    `    certificate = client.${mode}("${picture.fileName}", ${given})`,
    "print(certificate.class_name, certificate.radius)",
  ].join("\n");
}

export function copyable() {
  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const source = $(button.dataset.copies);
      try {
        await navigator.clipboard.writeText(source.textContent);
      } catch {
        getSelection().selectAllChildren(source); // only pages from https or this machine may write to the clipboard
        document.execCommand("copy");
      }
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
  }
}
